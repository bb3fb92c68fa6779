//go:build tools

// Package plugin pins Flannel's CNI plugin.
package plugin

import (
	_ "github.com/containernetworking/plugins/plugins/meta/flannel"
)
