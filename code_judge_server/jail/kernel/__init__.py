"""Linux: namespaces, cgroups, seccomp, Landlock, system calls."""
