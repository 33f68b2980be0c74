import os

fd = os.open("/dev/full", os.O_WRONLY)
os.dup2(fd, 1)
print("no space")
