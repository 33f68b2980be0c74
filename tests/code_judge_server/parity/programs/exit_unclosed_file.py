handle = open("out.txt", "w")
handle.write("written at exit")
import atexit

atexit.register(lambda: print(repr(open("out.txt").read())))
