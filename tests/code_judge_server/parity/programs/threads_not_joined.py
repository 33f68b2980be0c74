import threading, time
def work():
    time.sleep(0.1)
    print("thread ends after main")
threading.Thread(target=work).start()
print("main ends")
