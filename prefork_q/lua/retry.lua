-- retry: an operator gives dead tasks a new life; attempts, crashes and losses start anew.
--
-- KEYS[1]  root
-- ARGV[1]  nonce  of this request, so that the same call again answers the same
-- ARGV     then the ids
-- returns  a word a task: ok | not_dead | missing
-- uses     keys clock wake

local nonce, words, dead, queues = ARGV[1], {}, {}, {}
for i = 2, #ARGV do
  local id = ARGV[i]
  local fields = redis.pcall("HMGET", TASK .. id, "status", "queue", "retried_by")
  if fields.err or not fields[1] then
    words[i - 1] = "missing"
  elseif fields[1] == "dead" then
    words[i - 1] = "ok"
    dead[#dead + 1], queues[id] = id, fields[2]
  else
    words[i - 1] = fields[3] == nonce and "ok" or "not_dead"
  end
end

if #dead > 0 then redis.call("ZREM", DEAD, unpack(dead)) end
local woken = {}
for _, id in ipairs(dead) do
  if queues[id] then
    local queue = queues[id]
    queues[id] = nil
    redis.call("HDEL", TASK .. id, "error", "finished_at", "started_at", "started", "unknown_at",
      "progress", "cancel", "run_at")
    redis.call("HSET", TASK .. id, "status", "pending", "attempts", 0, "crashes", 0, "losses", 0,
      "token", "0", "ready_at", now_ms, "retried_by", nonce)
    redis.call("LPUSH", PENDING .. queue, id)
    if not woken[queue] and redis.call("SISMEMBER", PAUSED, queue) == 0 then
      woken[queue] = true
      wake(queue)
    end
  end
end
return words
