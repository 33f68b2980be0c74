import asyncio


async def numbers():
    try:
        yield 1
        yield 2
    finally:
        print("agen closed")


async def main():
    async for n in numbers():
        print(n)
        break


asyncio.run(main())
