-- retry: an operator gives dead tasks a new life; attempts, crashes and losses start anew.
--
-- KEYS[1]  root
-- ARGV[1]  nonce  of this request, so that the same call again answers the same
-- ARGV     then the ids
-- returns  a word a task: ok | not_dead | missing
-- uses     keys rights clock full lists

local nonce, words, dead, lists, queues = ARGV[1], {}, {}, {}, {}
-- As in parts/counters.lua.
redis.call("ZCARD", DEAD)
pass_when_full()
for i = 2, #ARGV do
  local id = ARGV[i]
  local task = TASK .. id
  local fields = redis.pcall("HMGET", task, "status", "queue", "retried_by")
  if not fields[1] then
    words[i - 1] = "missing"
  elseif fields[3] == nonce then
    -- The same call again; it may have died once more meanwhile.
    words[i - 1] = "ok"
  elseif fields[1] ~= "dead" then
    words[i - 1] = "not_dead"
  else
    local queue = fields[2]
    if not queue then
      queue = "default"
      redis.call("HSET", task, "queue", queue)
    end
    words[i - 1] = "ok"
    redis.call("HDEL", task, "error", "finished_at", "started_at", "started", "unknown_at",
      "progress", "cancel", "run_at")
    redis.call("HSET", task, "status", "pending", "attempts", 0, "crashes", 0, "losses", 0,
      "token", 0, "ready_at", now, "retried_by", nonce)
    dead[#dead + 1] = id
    if not lists[queue] then
      lists[queue] = {}
      queues[#queues + 1] = queue
    end
    table.insert(lists[queue], id)
  end
end
if #dead > 0 then redis.call("ZREM", DEAD, unpack(dead)) end
for _, queue in ipairs(queues) do
  push("LPUSH", queue, lists[queue])
  wake_unless_paused(queue)
end
return words
