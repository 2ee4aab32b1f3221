-- wrk's side: asks for sums, another one each time, and checks every answer. Called by: run.sh.
local threads = {}
local number = 0

function setup(thread)
  thread:set("id", #threads)
  table.insert(threads, thread)
end

function init()
  wrong, right = 0, 0
end

function request()
  number = number + 1
  local a, b = number * 7 + id, number * 3
  return wrk.format("GET", "/sum?a=" .. a .. "&b=" .. b .. "&name=%41rena+of+the+request", {
    ["User-Agent"] = "wrk", ["Accept"] = "text/html,application/xhtml+xml", ["Accept-Language"] = "en-US,en;q=0.5",
    ["Cookie"] = "session=0123456789abcdef; theme=dark", ["X-Request-Id"] = tostring(number),
  })
end

function response(status, headers, body)
  local a, b, sum, rest = body:match("^(%d+) %+ (%d+) = (%d+); (.*)\n$")
  if status == 200 and a and a + b == tonumber(sum) and rest == "3 parameters, 6 headers" then
    right = right + 1
  else
    wrong = wrong + 1
  end
end

function done(summary, latency, requests)
  local all_right, all_wrong = 0, 0
  for _, thread in ipairs(threads) do
    all_right = all_right + thread:get("right")
    all_wrong = all_wrong + thread:get("wrong")
  end
  local e = summary.errors
  print(string.format("result right=%d wrong=%d errors=%d seconds=%.3f p99_us=%d", all_right, all_wrong,
    e.connect + e.read + e.write + e.status + e.timeout, summary.duration / 1e6, latency:percentile(99)))
end
