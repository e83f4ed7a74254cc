-- submit: store new tasks, all of them or none.
--
-- KEYS[1]  root
-- ARGV     ten a task: id, type, queue, body, max_attempts, delay_ms, run_at_ms, timeout_ms,
--          idempotency key, fingerprint; "" stands for not given
-- returns  {ok, answers}: an answer is {status} or, for a request seen before, {status, id};
--          or {conflict, n}: entry n (from 1) has a key that was used for another request
-- uses     keys clock counters wake

local PER_TASK = 10

local answers, fresh, in_call = {}, {}, {}
for at = 1, #ARGV, PER_TASK do
  local id, idem, print_ = ARGV[at], ARGV[at + 8], ARGV[at + 9]
  local n = (at - 1) / PER_TASK + 1
  local known
  if idem == "" then
    known = redis.call("EXISTS", TASK .. id) == 1 and id
  else
    local first = in_call[idem] or redis.call("GET", IDEM .. idem)
    local first_id, first_print = string.match(first or "", "^(%S+) (%S*)$")
    if first_id and (in_call[idem] or redis.call("EXISTS", TASK .. first_id) == 1) then
      if first_print ~= print_ then return { "conflict", n } end
      known = first_id
    else
      in_call[idem] = id .. " " .. print_
    end
  end
  if known then
    answers[n] = { redis.call("HGET", TASK .. known, "status") or "pending", known }
  else
    fresh[#fresh + 1] = at
  end
end

local now_queues, due_later = {}, {}
for _, at in ipairs(fresh) do
  local id, queue = ARGV[at], ARGV[at + 2]
  local delay_ms, run_at_ms, timeout_ms, idem = ARGV[at + 5], ARGV[at + 6], ARGV[at + 7], ARGV[at + 8]
  local due = delay_ms ~= "" and now_ms + tonumber(delay_ms) or run_at_ms ~= "" and tonumber(run_at_ms)
  local status = due and due > now_ms and "delayed" or "pending"

  -- The first write: a full server refuses it, and nothing is stored.
  redis.call("SET", BODY .. id, ARGV[at + 3])
  local task = { "type", ARGV[at + 1], "queue", queue, "status", status,
    "max_attempts", ARGV[at + 4], "created_at", now_ms }
  if due then task[#task + 1], task[#task + 2] = "run_at", due end
  if timeout_ms ~= "" then task[#task + 1], task[#task + 2] = "timeout_ms", timeout_ms end
  if idem ~= "" then
    task[#task + 1], task[#task + 2] = "idem", idem
    redis.call("SET", IDEM .. idem, id .. " " .. ARGV[at + 9])
  end
  redis.call("HSET", TASK .. id, unpack(task))
  if status == "delayed" then
    due_later[#due_later + 1], due_later[#due_later + 2] = due, id
  else
    redis.call("LPUSH", PENDING .. queue, id)
    now_queues[queue] = true
  end
  redis.call("HINCRBY", QUEUES, queue, 1)
  answers[(at - 1) / PER_TASK + 1] = { status }
end

if #fresh > 0 then
  count("submitted", #fresh)
  if #due_later > 0 then
    local first, earliest = first_due(), due_later[1]
    for i = 1, #due_later, 2 do
      earliest = math.min(earliest, due_later[i])
      redis.call("ZADD", DELAYED, due_later[i], due_later[i + 1])
    end
    wake_mover(earliest, first)
  end
  for queue in pairs(now_queues) do
    if redis.call("SISMEMBER", PAUSED, queue) == 0 then wake(queue) end
  end
  write_counts()
end
return { "ok", answers }
