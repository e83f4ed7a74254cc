-- audit: give a lease again to tasks that are called processing and have none, as in a store that was edited
-- or restored in part. Looks at what the workers have claimed last, not at every key: who still holds such
-- a task goes on with it, and if nobody does it is reaped after this lease.
--
-- KEYS[1]  root
-- ARGV[1]  lease_ms
-- ARGV[2]  start  0 to begin, then what the last call returned
-- ARGV[3]  limit  how many tasks and workers to look at in this call, about
-- returns  {start, found}: an entry of found is {id, type, worker}; start 0: done
-- uses     keys rights clock full

local WORKERS = 100

local lease_ms, start, limit = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local workers = redis.call("ZRANGE", CLAIMS, start, start + WORKERS - 1)
local expiry, looked, seen, kept = text(now_ms + lease_ms), 0, 0, 0
local found, leases = {}, {}

pass_when_full()
for _, worker in ipairs(workers) do
  if looked >= limit then break end
  local record = redis.pcall("GET", CLAIM .. worker)
  seen, looked = seen + 1, looked + 1
  if type(record) ~= "string" or record == "gone" then
    redis.call("ZREM", CLAIMS, worker)
  else
    kept = kept + 1
    local words = {}
    for word in string.gmatch(record, "%S+") do words[#words + 1] = word end
    for i = 3, #words do
      local id = words[i]
      local fields = redis.pcall("HMGET", TASK .. id, "status", "token", "type")
      looked = looked + 1
      if fields[1] == "processing" and fields[2] == words[2] and not redis.call("ZSCORE", PROCESSING, id) then
        leases[#leases + 1], leases[#leases + 2] = expiry, id
        found[#found + 1] = { id, fields[3], worker }
      end
    end
  end
end
if #leases > 0 then redis.call("ZADD", PROCESSING, unpack(leases)) end
local is_done = seen == #workers and #workers < WORKERS
return { is_done and 0 or start + kept, found }
