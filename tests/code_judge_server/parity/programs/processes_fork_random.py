import os, random
reader, writer = os.pipe()
random.seed(1)
if os.fork() == 0:
    os.write(writer, str(random.random() == random.Random(1).random()).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 10), random.random() == random.Random(1).random())
