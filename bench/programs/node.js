// A program for node that keeps malloc busy; argument: rounds. Prints one line that depends on the work alone.
// Called by: bench/programs/node.py.
'use strict';
const crypto = require('crypto');
const zlib = require('zlib');
const {promisify} = require('util');

const deflate = promisify(zlib.deflate);
const inflate = promisify(zlib.inflate);
const rounds = Number(process.argv[2]);

let seed = 12345;
function random(limit) {
  seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
  return (seed >>> 8) % limit;
}

// A request as a server sees it: headers, a path, a body.
function request(i) {
  const tags = Array.from({length: random(12)}, (_, k) => `tag-${i}-${k}-${random(1000)}`);
  return {id: i, path: `/items/${random(5000)}?page=${random(50)}`, name: 'näme '.repeat(random(9)), tags, size: random(4000)};
}

const kept = [];  // buffers that live for a while and go in another order than they came
function keep(buffer) {
  if (kept.length < 3000) {
    kept.push(buffer);
  } else {
    kept[random(kept.length)] = buffer;
  }
}

async function round(number) {
  let sum = 0;
  for (let i = 0; i < 150; ++i) {
    const text = JSON.stringify(request(number * 1000 + i));
    const buffer = Buffer.alloc(64 + random(16000), text);
    const url = new URL(JSON.parse(text).path, 'http://localhost/');
    url.searchParams.set('q', text.slice(0, 80));
    sum += url.href.length;
    sum += crypto.createHash('sha1').update(buffer).update(url.href).digest()[0];
    sum += Buffer.concat([buffer, Buffer.from(text, 'utf16le')]).toString('base64').length;
    sum += new TextEncoder().encode(text + url.href).length;
    keep(buffer);
  }
  const packed = await Promise.all(Array.from({length: 12}, () => {
    const from = random(kept.length - 20);
    return deflate(Buffer.concat(kept.slice(from, from + 20)), {level: 1});
  }));
  const unpacked = await Promise.all(packed.map((buffer) => inflate(buffer)));
  return unpacked.reduce((total, buffer) => total + buffer.length + buffer[buffer.length >> 1], sum);
}

async function main() {
  let sum = 0;
  for (let i = 0; i < rounds; ++i) sum = (sum + await round(i)) % 1000000007;
  console.log(`rounds ${rounds}, sum ${sum}`);
}

main();
