import sys, threading
calls = []
def profile(frame, event, argument):
    calls.append(event)
threading.setprofile(profile)
sys.setprofile(profile)
thread = threading.Thread(target=print, args=("in a thread",))
thread.start()
class Last:
    def __del__(self):
        print("deleted")
last = Last()
last.itself = last
