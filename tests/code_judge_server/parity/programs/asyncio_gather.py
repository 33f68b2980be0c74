import asyncio
async def work(n):
    await asyncio.sleep(0.01 * (3 - n))
    print("done", n)
    return n * 10
async def main():
    print(await asyncio.gather(*(work(n) for n in range(3))))
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work(n)) for n in range(2)]
    print([task.result() for task in tasks])
asyncio.run(main())
