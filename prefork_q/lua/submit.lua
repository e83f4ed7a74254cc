-- submit: store new tasks, all of them or none.
--
-- KEYS[1]  root
-- ARGV     groups of tasks that have the same in common: type, queue, max_attempts, delay_ms, run_at_ms,
--          timeout_ms, n, is_keyed; then n times id, body and, if is_keyed is 1, idempotency key,
--          fingerprint. "" stands for not given
-- returns  {ok, answers}: an answer is the status or, for a request seen before, {status, id};
--          or {conflict, n}: entry n (from 1) has a key that was used for another request
-- uses     keys rights clock body counters lists delays

-- Calls `visit` for each group: its first argument, the first of its tasks, how many arguments a task has.
local function each_group(visit)
  local at = 1
  while at < #ARGV do
    local step = ARGV[at + 7] == "1" and 4 or 2
    local first, last = at + 8, at + 7 + step * ARGV[at + 6]
    local answer = visit(at, first, last, step)
    if answer then return answer end
    at = last + 1
  end
end

-- The id and the fingerprint of the first request with an idempotency key, if its task is still there.
local function first_of(idem)
  local id, fingerprint = string.match(redis.call("GET", IDEM .. idem) or "", "^(%S+) (%S*)$")
  if id and redis.call("EXISTS", TASK .. id) == 1 then return id, fingerprint end
end

-- As in parts/counters.lua.
redis.call("HEXISTS", QUEUES, "")

local fingerprints, entry = {}, 0
local conflict = each_group(function(group, first, last, step)
  if ARGV[group + 3] ~= "" or ARGV[group + 4] ~= "" then redis.call("ZCARD", DELAYED) end
  if step == 2 then
    entry = entry + (last + 1 - first) / step
    return
  end
  for at = first, last, step do
    entry = entry + 1
    local idem, fingerprint = ARGV[at + 2], ARGV[at + 3]
    local _, stored = first_of(idem)
    local known = fingerprints[idem] or stored or fingerprint
    if known ~= fingerprint then return { "conflict", entry } end
    fingerprints[idem] = known
  end
end)
if conflict then return conflict end

local answers, fresh, dues, lists, queues = {}, 0, {}, {}, {}

local function list_of(queue)
  local list = lists[queue]
  if not list then
    list = { new = 0 }
    lists[queue] = list
    queues[#queues + 1] = queue
  end
  return list
end

each_group(function(group, first, last, step)
  local type_, queue, max_attempts = ARGV[group], ARGV[group + 1], ARGV[group + 2]
  local delay_ms, run_at_ms, timeout_ms = ARGV[group + 3], ARGV[group + 4], ARGV[group + 5]
  local due = delay_ms ~= "" and now_ms + delay_ms or tonumber(run_at_ms)
  local is_later = due and due > now_ms
  local status = is_later and "delayed" or "pending"
  local list = list_of(queue)
  local common = { "type", type_, "max_attempts", max_attempts, "created_at", now, "queue", queue }
  if due then common[9], common[10] = "run_at", text(due) end
  if timeout_ms ~= "" then common[#common + 1], common[#common + 2] = "timeout_ms", timeout_ms end
  -- Claim takes a task without attempts for one that is pending since it was submitted.
  if is_later then common[#common + 1], common[#common + 2] = "attempts", "0" end

  for at = first, last, step do
    local id, idem = ARGV[at], step == 4 and ARGV[at + 2]
    local task = TASK .. id
    local known = redis.call("EXISTS", task) == 1 and id or idem and first_of(idem)
    if known then
      local fields = redis.pcall("HMGET", TASK .. known, "status")
      answers[#answers + 1] = { fields[1] or "pending", known }
    else
      -- The first write: a full server refuses it, and nothing is stored.
      store_with_body(id, task, ARGV[at + 1], status, unpack(common))
      if idem then
        redis.call("HSET", task, "idem", idem, "extra", 1)
        redis.call("SET", IDEM .. idem, id .. " " .. ARGV[at + 3])
      end
      list.new = list.new + 1
      if is_later then
        dues[#dues + 1], dues[#dues + 2] = due, id
      else
        list[#list + 1] = id
      end
      fresh = fresh + 1
      answers[#answers + 1] = status
    end
  end
end)

if fresh > 0 then
  if #dues > 0 then delay(dues) end
  for _, queue in ipairs(queues) do
    local list = lists[queue]
    if #list > 0 then
      push("LPUSH", queue, list)
      wake_unless_paused(queue)
    end
    if list.new > 0 then redis.call("HINCRBY", QUEUES, queue, list.new) end
  end
  count("submitted", fresh)
  write_counts()
end
return { "ok", answers }
