import atexit, threading, time
def second():
    time.sleep(0.05)
    print("second")
def first():
    time.sleep(0.05)
    threading.Thread(target=second).start()
    print("first")
atexit.register(print, "atexit last")
threading.Thread(target=first).start()
