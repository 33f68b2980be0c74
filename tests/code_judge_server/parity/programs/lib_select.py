import os, select, selectors
reader, writer = os.pipe()
print(select.select([reader], [], [], 0), select.select([], [writer], [], 0)[1] == [writer])
os.write(writer, b"x")
selector = selectors.DefaultSelector()
selector.register(reader, selectors.EVENT_READ, "data")
print([(key.data, mask) for key, mask in selector.select(0)])
