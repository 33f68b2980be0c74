import subprocess, sys
print("first", sys.stdin.readline())
sys.stdout.flush()
subprocess.run(["cat"])
