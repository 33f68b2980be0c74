import atexit, sys
def last_words():
    print("last words")
atexit.register(last_words)
def profile(frame, event, argument):
    name = frame.f_code.co_name
    print(event, name, getattr(argument, "__name__", argument), file=sys.__stderr__)
print("begin")
sys.setprofile(profile)
len("abc")
