#!/usr/bin/env bash
# checks: JVM: javac, then threads with direct ByteBuffers, Deflater/Inflater, a zip file, child
# process: same results
# lanes: percpu
# needs: javac=openjdk-17-jdk-headless
# shellcheck source=tests/preload/lib.sh
source "$PRELOAD_LIB"

cat >Work.java <<'END'
import java.io.*;
import java.nio.ByteBuffer;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.zip.*;

public class Work {
  static byte[] data(int seed, int size) {
    byte[] bytes = new byte[size];
    for (int i = 0; i < size; i++) {
      seed = seed * 1103515245 + 12345;
      bytes[i] = (byte) ((seed >>> 16) & 15);
    }
    return bytes;
  }
  static String task(int id) throws Exception {
    CRC32 crc = new CRC32();
    Deque<ByteBuffer> held = new ArrayDeque<>();
    for (int round = 0; round < 30; round++) {
      byte[] bytes = data(id * 31 + round, 5000 + 700 * round);
      ByteBuffer direct = ByteBuffer.allocateDirect(bytes.length);
      direct.put(bytes).flip();
      held.add(direct);
      Deflater deflater = new Deflater(1 + round % 9);
      deflater.setInput(direct.duplicate());
      deflater.finish();
      ByteBuffer packed = ByteBuffer.allocateDirect(bytes.length + 100);
      deflater.deflate(packed);
      deflater.end();
      packed.flip();
      crc.update(packed.duplicate());
      Inflater inflater = new Inflater();
      inflater.setInput(packed);
      byte[] back = new byte[bytes.length];
      inflater.inflate(back);
      inflater.end();
      if (!Arrays.equals(bytes, back)) throw new IllegalStateException(id + " " + round);
      if (held.size() > 8) {
        ByteBuffer old = held.remove();
        while (old.hasRemaining()) crc.update(old.get());
      }
    }
    return id + " " + Long.toHexString(crc.getValue());
  }
  public static void main(String[] args) throws Exception {
    int tasks = 100 * Integer.parseInt(args[0]);
    ExecutorService pool = Executors.newFixedThreadPool(6);
    List<Future<String>> results = new ArrayList<>();
    for (int i = 0; i < tasks; i++) { int id = i; results.add(pool.submit(() -> task(id))); }
    for (Future<String> result : results) System.out.println(result.get());
    pool.shutdown();
    Thread[] threads = new Thread[300];
    LongAdder total = new LongAdder();
    for (int i = 0; i < threads.length; i++) {
      int id = i;
      threads[i] = new Thread(() -> {
        total.add(ByteBuffer.allocateDirect(1000 + id).put(data(id, 1000)).position());
      });
      threads[i].start();
    }
    for (Thread thread : threads) thread.join();
    System.out.println("threads " + total.sum());
    Path zip = Path.of(args[1]);
    try (OutputStream file = new BufferedOutputStream(Files.newOutputStream(zip));
         ZipOutputStream out = new ZipOutputStream(file)) {
      for (int i = 0; i < 200; i++) {
        ZipEntry entry = new ZipEntry("entry" + i);
        entry.setTime(0);
        out.putNextEntry(entry);
        out.write(data(i, 3000 + i * 50));
      }
    }
    CRC32 all = new CRC32();
    try (ZipFile in = new ZipFile(zip.toFile())) {
      for (ZipEntry entry : Collections.list(in.entries()))
        all.update(in.getInputStream(entry).readAllBytes());
    }
    System.out.println("zip " + Long.toHexString(all.getValue()));
    Process child = new ProcessBuilder("echo", "child").start();
    String said = new String(child.getInputStream().readAllBytes()).trim();
    System.out.println(said + " " + child.waitFor());
  }
}
END
mkdir plain under
options=(-Xmx256m -XX:-UsePerfData -Xlog:disable -Xlog:all=warning:stderr)
plain javac -J-Xmx256m -d plain Work.java
under javac -J-Xmx256m -J-XX:-UsePerfData -d under Work.java 2>javac.log
equal 'a class file that differs' '' "$(diff -rq plain under)"
plain java "${options[@]}" -cp plain Work "$SCALE" plain.zip >out.plain
under java "${options[@]}" -XX:ErrorFile="$PWD/hs_err.log" -cp under Work "$SCALE" under.zip \
  >out.under 2>java.log
same 'the output of java' out.plain out.under
same 'the zip file' plain.zip under.zip
mapped javac java echo
ok "same class files, same $(wc -l <out.under) results of threads, direct buffers and zip"
