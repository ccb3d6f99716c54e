import ctypes
import subprocess

from aotbuild.build.package import read_library
from aotbuild.build.symbol_floor import GLIBC, GLIBCXX, write_floor_header
from aotbuild.target import version_tuple

SOURCE = """
#include <condition_variable>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
std::shared_mutex shared;
std::mutex own;
std::condition_variable woken;
bool ready = false;
extern "C" int answer(int value) {
    std::shared_lock reading(shared);
    auto one = std::make_shared<int>(value);
    auto other = one;
    std::thread waker([&] { std::unique_lock lock(own); ready = true; woken.notify_all(); });
    std::unique_lock lock(own);
    while (!ready) woken.wait(lock);
    lock.unlock();
    waker.join();
    return *other;
}
"""


def compiled(path, source, *flags):
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", *flags, "-x", "c++", "-"]
    subprocess.run([*command, "-o", path], input=source, text=True, check=True)
    return read_library(path.read_bytes())


def test_library_stays_below_torchs_floor_and_runs_when_compiled_with_the_header(tmp_path):
    header = write_floor_header(tmp_path / "include")
    library = compiled(tmp_path / "model.so", SOURCE, "-include", str(header))
    assert version_tuple(library.glibc) <= version_tuple(GLIBC)
    assert version_tuple(library.glibcxx) <= version_tuple(GLIBCXX)
    assert ctypes.CDLL(str(tmp_path / "model.so")).answer(42) == 42


def test_header_adds_no_symbol_when_nothing_uses_them(tmp_path):
    source = 'extern "C" int same(int value) { return value; }'
    header = write_floor_header(tmp_path / "include")
    library = compiled(tmp_path / "plain.so", source, "-include", str(header))
    assert library.glibcxx is None


def test_two_sources_link_when_both_include_the_header(tmp_path):
    header = write_floor_header(tmp_path / "include")
    other = tmp_path / "other.cpp"
    other.write_text("#include <memory>\nstd::shared_ptr<int> kept;\n")
    compiled(tmp_path / "both.so", SOURCE, "-include", str(header), "-x", "c++", str(other))
