-- hand_back: put back what a dead worker held: what its scoreboard shows and what its last claim took.
-- From then on claims in its name are refused.
--
-- KEYS[1]  root
-- ARGV[1]  worker
-- ARGV[2]  lease_ms
-- ARGV[3]  max_crashes  witnessed deaths under it that one task survives
-- ARGV[4]  retention_ms  lifetime of a task that turns out cancelled
-- ARGV     then five a task: id, token, verdict, error as JSON text, delay_ms. Verdicts: held (it had
--          not started, or its end was not its doing: uncharged), crashed (it was running when the
--          process died: a crash), timed_out (the attempt is used; delay_ms "": no attempt is left)
-- returns  an entry {id, type, queue, attempt, word} a task that was put back; the word is its status now
-- uses     keys rights clock full counters lists delays ending

local worker, lease_ms, max_crashes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local forget_at = text(now_ms + ARGV[4])
local answer, crashed = {}, 0
for at = 7, #ARGV, 5 do crashed = crashed + (ARGV[at] == "crashed" and 1 or 0) end

local function give_back(id, token, verdict, err, delay_ms)
  local task = TASK .. id
  local fields = redis.pcall("HMGET", task, "status", "token", "queue", "attempts", "crashes",
    "cancel", "idem", "waited", "type")
  if fields[1] ~= "processing" or fields[2] ~= token then return end
  local cancel, idem, waited, status = fields[6], fields[7], fields[8], nil
  leave(id)
  if verdict == "timed_out" then
    count("failed")
    redis.call("HSET", task, "token", 0, "error", err)
    redis.call("HDEL", task, "unknown_at")
    if cancel then
      to_cancelled(id, task, idem, waited, forget_at)
      status = "cancelled"
    elseif delay_ms == "" then
      to_dead(id, task, err, waited)
      status = "dead"
    else
      to_delayed(id, task, delay_ms)
      count("retried")
      status = "delayed"
    end
  else
    local attempts, crashes = math.max(0, (tonumber(fields[4]) or 0) - 1), tonumber(fields[5]) or 0
    redis.call("HSET", task, "token", 0, "attempts", attempts)
    if verdict == "crashed" then
      crashes = crashes + 1
      count("crashes")
      redis.call("HSET", task, "crashes", crashes, "error", err)
      redis.call("HDEL", task, "unknown_at")
    else
      count("released")
    end
    if cancel then
      to_cancelled(id, task, idem, waited, forget_at)
      status = "cancelled"
    -- Of several that ran at the first crash one alone did it. From then on each runs alone.
    elseif verdict == "crashed" and crashes > max_crashes and (crashes > 1 or crashed == 1) then
      to_dead(id, task, err, waited)
      status = "dead"
    else
      to_pending(id, task, fields[3], attempts)
      status = "pending"
    end
  end
  answer[#answer + 1] = { id, fields[9] or "", fields[3] or "", tonumber(fields[4]) or 0, status }
end

local record = redis.pcall("GET", CLAIM .. worker)
pass_when_full()
for at = 5, #ARGV, 5 do give_back(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) end
if type(record) == "string" and record ~= "gone" then
  local words = {}
  for word in string.gmatch(record, "%S+") do words[#words + 1] = word end
  for i = 3, #words do give_back(words[i], words[2], "held", "", "") end
end
redis.call("SET", CLAIM .. worker, "gone", "PX", text(4 * lease_ms))
-- The audit takes it out otherwise.
redis.pcall("ZREM", CLAIMS, worker)
write_sets()
write_counts()
return answer
