import subprocess, sys
done = subprocess.run([sys.executable, "-c", "import sys; print(input()[::-1]); sys.exit(3)"], input="abc", capture_output=True, text=True)
print(done.returncode, repr(done.stdout), repr(done.stderr))
print(subprocess.check_output(["sh", "-c", "echo $((6 * 7)); pwd"], text=True))
try:
    subprocess.run(["sleep", "5"], timeout=0.1)
except subprocess.TimeoutExpired as error:
    print("timed out", error.cmd, error.output)
try:
    subprocess.run(["no-such-program"])
except FileNotFoundError as error:
    print(error)
