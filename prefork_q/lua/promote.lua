-- promote: the mover. Takes due tasks from the delayed set to their pending lists.
--
-- KEYS[1]  root
-- ARGV[1]  limit  how many at most
-- returns  {moved, wait_ms}: wait_ms until the next is due, 0 if some are due now; {moved} if none waits
-- uses     keys rights clock full counters lists delays corrupt

local due = redis.call("ZRANGEBYSCORE", DELAYED, "-inf", now, "LIMIT", 0, ARGV[1])
local moved, lists, queues = 0, {}, {}
if #due > 0 then
  pass_when_full()
  redis.call("ZREM", DELAYED, unpack(due))
end
for _, id in ipairs(due) do
  local task = TASK .. id
  local fields = redis.pcall("HMGET", task, "status", "queue")
  if not fields[1] or not fields[2] then
    to_corrupt(id)
  elseif fields[1] ~= "delayed" then
    count("strays")
  else
    local queue = fields[2]
    if not lists[queue] then
      lists[queue] = {}
      queues[#queues + 1] = queue
    end
    table.insert(lists[queue], id)
    redis.call("HSET", task, "status", "pending", "ready_at", now)
    moved = moved + 1
  end
end
for _, queue in ipairs(queues) do
  push("LPUSH", queue, lists[queue])
  wake_unless_paused(queue)
end
write_counts()

local next_due = first_due()
return { moved, next_due and math.max(0, next_due - now_ms) }
