#!/usr/bin/env bash
# checks: node: worker_threads, transferred and shared buffers, zlib and crypto in the thread pool:
# same digests
# lanes: shared:2
# needs: node=nodejs
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

cat >work.js <<'END'
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const zlib = require('zlib'), crypto = require('crypto'), { promisify } = require('util');
const md5 = (data) => crypto.createHash('md5').update(data).digest('hex');
function fill(seed, size) {
  const buffer = Buffer.allocUnsafeSlow(size);
  for (let i = 0; i < size; i++) {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    buffer[i] = (seed >>> 16) & 31;
  }
  return buffer;
}
if (isMainThread) {
  main(Number(process.argv[2])).catch((error) => { console.error(error); process.exit(1); });
} else {
  const { id, counter, rounds } = workerData;
  const cells = new Int32Array(counter);
  parentPort.on('message', (buffer) => {
    if (buffer === null) return parentPort.close();
    const bytes = Buffer.from(buffer);
    for (let i = 0; i < rounds; i++) Atomics.add(cells, i % cells.length, 1);
    const parts = [];
    for (let i = 0; i < 200; i++)
      parts.push(Buffer.from(bytes.subarray(i * 7, i * 7 + 50 + i * 3)));
    const text = Buffer.concat(parts).toString('latin1').split('\u0005').sort().join('|');
    bytes.reverse();
    parentPort.postMessage({ id, digest: md5(text), buffer }, [buffer]);
  });
}
async function main(scale) {
  const out = [];
  const counter = new SharedArrayBuffer(64);
  const workers = [0, 1, 2, 3].map((id) =>
    new Worker(__filename, { workerData: { id, counter, rounds: 1000 } }));
  await Promise.all(workers.map(async (worker, id) => {
    for (let round = 0; round < 40 * scale; round++) {
      const data = fill(id * 100 + round, 20000 + round * 997);
      const buffer = data.buffer.slice(data.byteOffset, data.byteOffset + data.length);
      const answer = await new Promise((resolve, reject) => {
        worker.once('message', resolve); worker.once('error', reject);
        worker.postMessage(buffer, [buffer]);
      });
      const same = md5(Buffer.from(answer.buffer).reverse()) === md5(data);
      out.push(`${id} ${round} ${answer.digest} ${same}`);
    }
    const exited = new Promise((resolve) => worker.once('exit', resolve));
    worker.postMessage(null);
    out.push(`worker ${id} exit ${await exited}`);
  }));
  out.push('counter ' + new Int32Array(counter).reduce((a, b) => a + b));
  const [gzip, gunzip, brotli, pbkdf2] =
    [zlib.gzip, zlib.gunzip, zlib.brotliCompress, crypto.pbkdf2].map(promisify);
  const params = { [zlib.constants.BROTLI_PARAM_QUALITY]: 5 };
  await Promise.all(Array.from({ length: 40 * scale }, async (_, i) => {
    const data = fill(i, 100000 + i * 1000);
    const packed = await gzip(data, { level: 1 + i % 9 });
    const back = await gunzip(packed);
    const other = i % 4 ? Buffer.alloc(0) : await brotli(data, { params });
    const key = await pbkdf2('secret' + i, 'salt', 500, 64, 'sha256');
    out.push(['pool', String(i).padStart(4, '0'), packed.length, other.length, back.equals(data),
      key.toString('hex')].join(' '));
  }));
  let objects = new Map();
  for (let i = 0; i < 200000 * scale; i++)
    objects.set('k' + i % 30011, { i, text: 'v'.repeat(i % 50), list: [i, i + 1] });
  out.push('json ' + md5(JSON.stringify([...objects])));
  console.log(out.sort().join('\n'));
}
END
plain node work.js "$SCALE" >out.plain
under node work.js "$SCALE" >out.under 2>node.log
same 'the output of node' out.plain out.under
equal 'wrong round trips' 0 "$(count false out.under)"
equal 'the shared counter' "counter $((4 * 40 * SCALE * 1000))" "$(grep '^counter' out.under)"
mapped node
ok "4 workers, the thread pool and a big heap give the same $(wc -l <out.under) digests"
