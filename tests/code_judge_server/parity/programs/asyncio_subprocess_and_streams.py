import asyncio
async def main():
    process = await asyncio.create_subprocess_exec("cat", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    print(await process.communicate(b"through cat"), process.returncode)
    print(await asyncio.to_thread(sum, [1, 2, 3]))
    queue = asyncio.Queue()
    await queue.put(1)
    print(await queue.get())
asyncio.run(main())
