import threading
data = threading.local()
data.x = 1
def work():
    print(hasattr(data, "x"))
timer = threading.Timer(0.01, work)
timer.start()
timer.join()
event, barrier = threading.Event(), threading.Barrier(2)
print(event.wait(0.01), barrier.parties)
