import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("thread still runs"))).start()
raise RuntimeError("main fails")
