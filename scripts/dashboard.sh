#!/usr/bin/env bash
# Checks the dashboard of contrib/grafana against Grafana's own types, which each release publishes as @grafana/schema.
#
# TypeScript's compiler reads the file as a Dashboard with panels of these kinds: a member that Grafana does not know is
# an error, and so is a value that has no meaning for it. Both packages come from npm, once, into the target folder.
# Exit code 3: there is no npm, or they cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/dashboard
packages=(@grafana/schema@12.4.11 typescript@5.9.3)

fetch() {
	[[ $(cat "$out/packages" 2>/dev/null) != "${packages[*]}" ]] || return 0
	command -v npm >/dev/null && command -v node >/dev/null || return 1
	echo "dashboard: fetching ${packages[*]} (once)" >&2
	rm -rf "$out"
	mkdir -p "$out"
	echo '{"private": true, "type": "module"}' >"$out/package.json"
	(cd "$out" && npm install --silent --no-audit --no-fund --ignore-scripts "${packages[@]}" >&2) || return 1
	echo "${packages[*]}" >"$out/packages"
}

# `Text` takes the words of the file for the members of Grafana's enumerations. `definition` is what Grafana writes
# beside the query of a variable, and has no type.
types() {
	local from='@grafana/schema/dist/esm/raw/composable'
	cat <<-TYPES
		import type { Dashboard, FieldConfig, Panel as AnyPanel, RowPanel, VariableModel } from '@grafana/schema';
		import type { Options as Stat } from '$from/stat/panelcfg/x/StatPanelCfg_types.gen';
		import type { Options as Series, FieldConfig as SeriesField }
			from '$from/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
		import type { Options as Table, FieldConfig as TableField }
			from '$from/table/panelcfg/x/TablePanelCfg_types.gen';

		type Text<T> = T extends string ? \`\${T}\` : T extends number | boolean | null | undefined ? T
			: T extends object ? { readonly [K in keyof T]: Text<T[K]> } : T;
		interface Query { datasource: { type: 'prometheus'; uid: string }; expr: string; refId: string;
			legendFormat?: string; format?: 'table' | 'time_series'; instant?: boolean; range?: boolean }
		type Panel<Type extends string, Options, Custom> = Omit<AnyPanel, 'type' | 'options' | 'targets' | 'fieldConfig'> & {
			type: Type; options: Partial<Options>; targets: Query[];
			fieldConfig: { defaults: Omit<FieldConfig, 'custom'> & { custom?: Partial<Custom> };
				overrides: NonNullable<AnyPanel['fieldConfig']>['overrides'] } };
		type Row = Omit<RowPanel, 'type'> & { type: 'row' };
		type Shown = Row | Panel<'stat', Stat, never> | Panel<'timeseries', Series, SeriesField>
			| Panel<'table', Table, TableField>;
		type Variable = VariableModel & { definition?: string; datasource?: { type: string; uid: string } };
		type Ours = Omit<Dashboard, 'panels' | 'templating'> & { panels: Shown[]; templating: { list: Variable[] } };
	TYPES
	echo 'export const dashboard: Text<Ours> ='
	cat contrib/grafana/holdfast.json
}

fetch || exit 3
types >"$out/dashboard.ts"
"$out/node_modules/.bin/tsc" --noEmit --strict --skipLibCheck --module nodenext --target es2022 "$out/dashboard.ts"
echo "dashboard: as Grafana's types have it (${packages[0]})"
