import resource, threading

for name in ("STACK", "CORE", "NOFILE", "FSIZE", "NPROC", "AS"):
    print(name, resource.getrlimit(getattr(resource, f"RLIMIT_{name}")))
print(threading.stack_size())
