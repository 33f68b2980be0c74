import threading, time
threading.Thread(target=lambda: (time.sleep(30), print("never")), daemon=True).start()
print("main ends")
