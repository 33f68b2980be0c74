import os
reader, writer = os.pipe()
if os.fork() == 0:
    os.dup2(writer, 1)
    os.execvp("echo", ["echo", "from exec"])
os.close(writer)
print(os.fdopen(reader).read(), os.wait()[1])
