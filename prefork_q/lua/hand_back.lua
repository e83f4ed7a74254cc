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
-- returns  an entry {id, type, word} a task that was put back; the word is its status now
-- uses     keys clock counters wake ending

local worker, lease_ms, max_crashes = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local retention_ms = tonumber(ARGV[4])
local record_key = root .. "claim:" .. worker

local entries, seen, leaving = {}, {}, {}
local function add(id, token, verdict, err, delay_ms)
  if seen[id] then return end
  seen[id] = true
  local fields = redis.pcall("HMGET", TASK .. id, "status", "token", "queue", "attempts", "crashes",
    "cancel", "idem", "waited", "type")
  if not fields.err and fields[1] == "processing" and fields[2] == token then
    entries[#entries + 1] = { id, verdict, err, delay_ms, fields }
    leaving[#leaving + 1] = id
  end
end

for at = 5, #ARGV, 5 do add(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]) end
local record = redis.call("GET", record_key)
if record and record ~= "gone" then
  local words = {}
  for word in string.gmatch(record, "%S+") do words[#words + 1] = word end
  for i = 3, #words do add(words[i], words[2], "held", "", "") end
end

redis.call("PERSIST", PROCESSING)
if #leaving > 0 then redis.call("ZREM", PROCESSING, unpack(leaving)) end
local answer = {}
for _, entry in ipairs(entries) do
  local id, verdict, err, delay_ms, fields = entry[1], entry[2], entry[3], entry[4], entry[5]
  local attempts, crashes = tonumber(fields[4]) or 1, tonumber(fields[5]) or 0
  local cancel, idem, waited = fields[6], fields[7], fields[8]
  redis.call("HSET", TASK .. id, "token", "0")
  local status
  if verdict == "timed_out" then
    count("failed")
    redis.call("HSET", TASK .. id, "error", err)
    if delay_ms == "" then
      to_dead(id, err, waited)
      status = "dead"
    elseif cancel then
      to_cancelled(id, idem, waited, retention_ms)
      status = "cancelled"
    else
      to_delayed(id, tonumber(delay_ms))
      count("retried")
      status = "delayed"
    end
  else
    attempts = math.max(0, attempts - 1)
    if verdict == "crashed" then
      crashes = crashes + 1
      count("crashes")
      redis.call("HSET", TASK .. id, "crashes", crashes, "error", err)
    else
      count("released")
    end
    if cancel then
      redis.call("HSET", TASK .. id, "attempts", attempts)
      to_cancelled(id, idem, waited, retention_ms)
      status = "cancelled"
    elseif crashes > max_crashes and verdict == "crashed" then
      redis.call("HSET", TASK .. id, "attempts", attempts)
      to_dead(id, err, waited)
      status = "dead"
    else
      to_pending(id, fields[3], attempts)
      status = "pending"
    end
  end
  answer[#answer + 1] = { id, fields[9], status }
end
redis.call("SET", record_key, "gone", "PX", 4 * lease_ms)
write_sets()
write_counts()
return answer
