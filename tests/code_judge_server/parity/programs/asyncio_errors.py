import asyncio
async def fail():
    raise ValueError("in a task")
async def main():
    task = asyncio.create_task(fail())
    try:
        async with asyncio.timeout(0.05):
            await asyncio.sleep(5)
    except TimeoutError:
        print("timed out")
    await task
asyncio.run(main())
