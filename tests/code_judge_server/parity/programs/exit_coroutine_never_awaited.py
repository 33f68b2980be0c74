async def work():
    print("never")


work()
kept = work()
