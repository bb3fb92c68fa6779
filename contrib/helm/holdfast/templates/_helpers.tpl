{{/* The image. A digest says more than a tag. */}}
{{- define "holdfast.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Helm's labels, on all but the pods: a pod with the chart's version would restart for a chart that changes nothing. */}}
{{- define "holdfast.labels" -}}
app.kubernetes.io/name: holdfast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "holdfast-%s" .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Helm reads the numbers of a file as floating ones. toToml would write 5 as 5.0, which holdfast refuses. */}}
{{- define "holdfast.wholeNumbers" -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value -}}
{{- include "holdfast.wholeNumbers" $value -}}
{{- else if kindIs "slice" $value -}}
{{- $items := dict -}}
{{- range $index, $item := $value -}}
{{- $_ := set $items (printf "%06d" $index) $item -}}
{{- end -}}
{{- include "holdfast.wholeNumbers" $items -}}
{{- $whole := list -}}
{{- range $items -}}
{{- $whole = append $whole . -}}
{{- end -}}
{{- $_ := set $ $key $whole -}}
{{- else if and (kindIs "float64" $value) (eq $value (floor $value)) -}}
{{- $_ := set $ $key (int64 $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The file holdfast.toml. */}}
{{- define "holdfast.toml" -}}
{{- include "holdfast.needs" . -}}
{{- $config := deepCopy .Values.config -}}
{{- include "holdfast.wholeNumbers" $config -}}
{{- mustToToml $config | trim -}}
{{- end -}}

{{/* The ConfigMap's name has a sum of its content, so a changed configuration rolls out like a changed image, and a
     rollback brings the former one back. */}}
{{- define "holdfast.configName" -}}
holdfast-{{ include "holdfast.toml" . | sha256sum | trunc 10 }}
{{- end -}}

{{/* Fails where the apiserver would be looked for where only holdfast leads. */}}
{{- define "holdfast.needs" -}}
{{- $apiserver := .Values.config.apiserver | default dict -}}
{{- if not (or $apiserver.endpoints $apiserver.kubeconfig) -}}
{{- fail (printf "\n\n%s\n%s\n%s\n\n%s\n"
  "config.apiserver.endpoints is empty: say where the apiservers are, by address, the nearest first."
  "There is no default: the ClusterIP of default/kubernetes is reachable only through holdfast, which must not"
  "depend on itself. `kubectl get endpointslices --namespace default` shows the addresses behind it."
  "  --set 'config.apiserver.endpoints={https://10.0.0.10:6443}'") -}}
{{- end -}}
{{- $service := lookup "v1" "Service" "default" "kubernetes" -}}
{{- range $endpoint := $apiserver.endpoints -}}
{{- if not (regexMatch `^https://([0-9.]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?/?$` $endpoint) -}}
{{- fail (printf "\n\nconfig.apiserver.endpoints: %q is not https and an IP address, such as https://10.0.0.10:6443.\n%s\n" $endpoint
  "Names are not resolved: DNS is behind a Service. A name in the certificate goes to config.apiserver.tls_server_name.") -}}
{{- end -}}
{{- if has (urlParse $endpoint).hostname (dig "spec" "clusterIPs" list $service) -}}
{{- fail (printf "\n\nconfig.apiserver.endpoints: %q is the ClusterIP of default/kubernetes.\n%s\n%s\n" $endpoint
  "It is reachable only through holdfast, which must not depend on itself. Take the apiservers' own addresses:"
  "kubectl get endpointslices --namespace default") -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Root without root's capabilities, for both containers. */}}
{{- define "holdfast.privileges" -}}
runAsUser: 0
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN, PERFMON]
{{- end -}}

{{/* A probe asks by the socket of the configuration. */}}
{{- define "holdfast.health" -}}
{{- $socket := dig "admin" "socket" "/run/holdfast/admin.sock" (index . 0).Values.config -}}
{{ list "holdfast" (printf "--socket=%s" $socket) "health" (index . 1) | toJson }}
{{- end -}}
