//go:build !linux

package localstack

import "syscall"

// childAttributes keeps a Ctrl-C in the terminal from reaching the child. Only Linux can also tie its life to ours.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
