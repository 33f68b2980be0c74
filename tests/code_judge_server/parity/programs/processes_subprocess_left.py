import subprocess
left = subprocess.Popen(["sleep", "0.1"])
print("main ends")
