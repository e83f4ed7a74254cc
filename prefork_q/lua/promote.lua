-- promote: the mover. Takes due tasks from the delayed set to their pending lists.
--
-- KEYS[1]  root
-- ARGV[1]  limit  how many at most
-- returns  {moved, wait_ms}: wait_ms until the next is due, 0 if some are due now, -1 if none waits
-- uses     keys clock counters wake corrupt

local due = redis.call("ZRANGEBYSCORE", DELAYED, "-inf", now_ms, "LIMIT", 0, ARGV[1])
local moved, bad, strays, lists, order = {}, {}, 0, {}, {}
for _, id in ipairs(due) do
  local fields = redis.pcall("HMGET", TASK .. id, "status", "queue")
  if fields.err or not fields[1] then
    bad[#bad + 1] = id
  elseif fields[1] ~= "delayed" then
    strays = strays + 1
  else
    local queue = fields[2]
    if not lists[queue] then
      lists[queue] = {}
      order[#order + 1] = queue
    end
    table.insert(lists[queue], id)
    moved[#moved + 1] = id
  end
end

if #due > 0 then redis.call("ZREM", DELAYED, unpack(due)) end
for _, id in ipairs(bad) do to_corrupt(id) end
if strays > 0 then count("strays", strays) end
for _, queue in ipairs(order) do
  for _, id in ipairs(lists[queue]) do
    redis.call("HSET", TASK .. id, "status", "pending", "ready_at", now_ms)
  end
  redis.call("LPUSH", PENDING .. queue, unpack(lists[queue]))
  if redis.call("SISMEMBER", PAUSED, queue) == 0 then wake(queue) end
end
write_counts()

local next_due = first_due()
return { #moved, next_due and math.max(0, next_due - now_ms) or -1 }
