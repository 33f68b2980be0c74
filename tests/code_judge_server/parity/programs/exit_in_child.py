import os, sys

pid = os.fork()
if pid == 0:
    print("child")
    sys.exit(6)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
