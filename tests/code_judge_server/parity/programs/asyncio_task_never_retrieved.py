import asyncio
async def fail():
    raise ValueError("nobody looks")
async def main():
    asyncio.create_task(fail())
    await asyncio.sleep(0.01)
asyncio.run(main())
print("end")
