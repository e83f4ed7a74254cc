-- clock: Redis's own time, read once a call. Clocks of clients are never compared with it.

local clock = redis.call("TIME")
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
