import os

print("buffered before the fork")
pid = os.fork()
if pid:
    os.wait()
print("parent" if pid else "child")
