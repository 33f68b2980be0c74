import atexit

for number in range(3):
    atexit.register(print, "handler", number)


@atexit.register
def last():
    print("registered last runs first", "__file__" in globals())
    atexit.register(print, "registered while exiting")


print("main ends")
