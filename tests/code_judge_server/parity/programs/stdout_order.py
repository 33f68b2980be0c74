import os, sys
print("text")
os.write(1, b"descriptor first\n")
sys.stdout.buffer.write(b"buffer\n")
print("more text")
sys.stderr.write("unbuffered error\n")
