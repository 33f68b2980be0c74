import subprocess, sys
if len(sys.argv) > 1:
    print("child", sys.argv[1:], __name__)
else:
    print("parent", flush=True)
    subprocess.run([sys.executable, __file__, "argument"], check=True)
