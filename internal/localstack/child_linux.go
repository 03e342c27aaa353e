package localstack

import "syscall"

// childAttributes makes a child end with this process, however this process ends, and keeps a Ctrl-C in the terminal
// from reaching the child: the database must outlive the services that are being stopped.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
