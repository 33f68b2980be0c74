class Quiet:
    __slots__ = ()

    def __del__(self):
        print("del without gc")


it = Quiet()
