-- submit: store new tasks, all of them or none.
--
-- KEYS[1]  root
-- ARGV     ten a task: id, type, queue, body, max_attempts, delay_ms, run_at_ms, timeout_ms,
--          idempotency key, fingerprint; "" stands for not given
-- returns  {ok, answers}: an answer is the status or, for a request seen before, {status, id};
--          or {conflict, n}: entry n (from 1) has a key that was used for another request
-- uses     keys clock counters lists delays

local PER_TASK = 10

-- The id and the fingerprint of the first request with an idempotency key, if its task is still there.
local function first_of(idem)
  local id, fingerprint = string.match(redis.call("GET", IDEM .. idem) or "", "^(%S+) (%S*)$")
  if id and redis.call("EXISTS", TASK .. id) == 1 then return id, fingerprint end
end

local fingerprints = {}
for at = 1, #ARGV, PER_TASK do
  local idem, fingerprint = ARGV[at + 8], ARGV[at + 9]
  if idem ~= "" then
    local _, stored = first_of(idem)
    local first = fingerprints[idem] or stored or fingerprint
    if first ~= fingerprint then return { "conflict", (at - 1) / PER_TASK + 1 } end
    fingerprints[idem] = first
  end
end

local answers, fresh, dues, lists, queues = {}, 0, {}, {}, {}
for at = 1, #ARGV, PER_TASK do
  local id, queue, idem = ARGV[at], ARGV[at + 2], ARGV[at + 8]
  local task = TASK .. id
  local known = redis.call("EXISTS", task) == 1 and id or idem ~= "" and first_of(idem)
  if known then
    local fields = redis.pcall("HMGET", TASK .. known, "status")
    answers[#answers + 1] = { fields[1] or "pending", known }
  else
    local delay_ms, run_at_ms, timeout_ms = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7]
    local due = delay_ms ~= "" and now_ms + delay_ms or tonumber(run_at_ms)
    local is_later = due and due > now_ms
    local status = is_later and "delayed" or "pending"

    -- The first write: a full server refuses it, and nothing is stored.
    redis.call("SET", BODY .. id, ARGV[at + 3])
    redis.call("HSET", task, "status", status, "type", ARGV[at + 1], "max_attempts", ARGV[at + 4],
      "created_at", now, "queue", queue)
    if due then redis.call("HSET", task, "run_at", text(due)) end
    if timeout_ms ~= "" then redis.call("HSET", task, "timeout_ms", timeout_ms) end
    if idem ~= "" then
      redis.call("HSET", task, "idem", idem)
      redis.call("SET", IDEM .. idem, id .. " " .. ARGV[at + 9])
    end
    local list = lists[queue]
    if not list then
      list = { new = 0 }
      lists[queue] = list
      queues[#queues + 1] = queue
    end
    list.new = list.new + 1
    if is_later then
      -- Claim takes a task without attempts for one that is pending since it was submitted.
      redis.call("HSET", task, "attempts", 0)
      dues[#dues + 1], dues[#dues + 2] = due, id
    else
      list[#list + 1] = id
    end
    fresh = fresh + 1
    answers[#answers + 1] = status
  end
end

if fresh > 0 then
  if #dues > 0 then delay(dues) end
  for _, queue in ipairs(queues) do
    local list = lists[queue]
    if #list > 0 then
      push("LPUSH", queue, list)
      wake_unless_paused(queue)
    end
    redis.call("HINCRBY", QUEUES, queue, list.new)
  end
  count("submitted", fresh)
  write_counts()
end
return { "ok", answers }
