#include <cuda_runtime.h>
#include <immintrin.h>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#define CK(x) do { cudaError_t e = (x); if (e) { printf("ERR %d %s\n", __LINE__, cudaGetErrorString(e)); exit(1);} } while (0)
typedef unsigned long long u64;
__device__ __forceinline__ u64 ldacqsys(const u64* p){u64 v;asm volatile("ld.acquire.sys.global.u64 %0,[%1];":"=l"(v):"l"(p):"memory");return v;}
__device__ __forceinline__ u64 ldrelsys(const u64* p){u64 v;asm volatile("ld.relaxed.sys.global.u64 %0,[%1];":"=l"(v):"l"(p));return v;}
__device__ __forceinline__ u64 ldgpu(const u64* p){u64 v;asm volatile("ld.relaxed.gpu.global.u64 %0,[%1];":"=l"(v):"l"(p));return v;}
__device__ __forceinline__ u64 ldacqgpu(const u64* p){u64 v;asm volatile("ld.acquire.gpu.global.u64 %0,[%1];":"=l"(v):"l"(p):"memory");return v;}
__device__ __forceinline__ void stgpu(u64* p,u64 v){asm volatile("st.relaxed.gpu.global.u64 [%0],%1;"::"l"(p),"l"(v):"memory");}
__device__ __forceinline__ void stsys(u64* p,u64 v){asm volatile("st.relaxed.sys.global.u64 [%0],%1;"::"l"(p),"l"(v):"memory");}
__device__ __forceinline__ u64 gt(){u64 v;asm volatile("mov.u64 %0,%globaltimer;":"=l"(v));return v;}
// v: 0 relaxed, 1 acquire, 2 relaxed + fence at end, 3 pipelined 4 polls
struct R{u64*slots,*head,*tailc,*lock,*tail,*done,*donec,*lock2,*lines;u64 mask;int shift;int words;};
__device__ void waitfor(u64*cache,u64*lock,u64*host,u64 need){
  unsigned ns=32;
  for(;;){
    if(ldgpu(cache)>=need)return;
    if(ldgpu(lock)==0&&atomicCAS(lock,0ull,1ull)==0){
      u64 v=ldacqsys(host); if(v>ldgpu(cache))stgpu(cache,v);
      asm volatile("st.release.gpu.global.u64 [%0],%1;"::"l"(lock),"l"(0ull):"memory");
      if(v>=need)return;
    } else {__nanosleep(ns); if(ns<1024)ns*=2;}
  }
}
template<bool ACQ> __device__ __forceinline__ u64 push(R&r,u64 a,u64 b,u64 c,u64 d){
  unsigned m=__activemask();int lane=threadIdx.x&31;int leader=__ffs(m)-1;
  u64 base=0,tl=0;
  if(lane==leader){base=atomicAdd(r.head,(u64)__popc(m)); tl=ACQ?ldacqgpu(r.tailc):ldgpu(r.tailc);}
  u64 last=base+__popc(m);
  if(lane==leader&&last>tl+r.mask+1)waitfor(r.tailc,r.lock,r.tail,last-r.mask-1);
  base=__shfl_sync(m,base,leader);
  u64 t=base+__popc(m&((1u<<lane)-1));
  __syncwarp(m);
  u64 par=((t>>r.shift)&1)^1;par<<=63;
  u64*s=r.slots+(t&r.mask)*r.words;
  asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};"::"l"(s),"l"(a|par),"l"(b|par):"memory");
  asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};"::"l"(s+2),"l"(c|par),"l"(d|par):"memory");
  return t;
}

struct T{u64*start,*ticket,*done,*poll;};
// all poll donec; k pollers elected among all, shared donec
__global__ void kE(R r,int n,int k,T tr,int firstdelay){
  for(int i=0;i<n;i++){
    u64 a=gt();
    u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    u64 b=gt();
    bool elected=false;u64*lk=r.lock2+(blockIdx.x%k)*32;
    elected=atomicCAS(lk,0ull,1ull)==0;
    if(firstdelay&&elected){long long c=clock64();while(clock64()-c<firstdelay);}
    unsigned polls=0;
    for(;;){
      if(elected){
        u64 v=ldrelsys(r.done); polls++; if(v>ldgpu(r.donec))atomicMax(r.donec,v); if(v>t)break;
      } else {
        if(ldgpu(r.donec)>t)break;
        if(ldgpu(lk)==0) elected=atomicCAS(lk,0ull,1ull)==0;
      }
    }
    if(elected)stgpu(lk,0);
    u64 c=gt();
    tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=polls;
  }
}
// relay: last block, w warps poll in turn (staggered), write donec
__global__ void kR(R r,int n,T tr,u64 total,int stagger){
  if(blockIdx.x==gridDim.x-1){
    if(threadIdx.x%32)return; int w=threadIdx.x/32; 
    long long c=clock64(); while(clock64()-c<(long long)stagger*w);
    u64 seen=0; for(;;){u64 v=ldrelsys(r.done); if(v>seen){seen=v;atomicMax(r.donec,v);} if(v>=total)break;}
    return;
  }
  if(threadIdx.x)return;
  for(int i=0;i<n;i++){
    u64 a=gt();
    u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    u64 b=gt();
    while(ldgpu(r.donec)<=t);
    u64 c=gt();
    tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=0;
  }
}
__global__ void kB(R r,int n,T tr,int firstdelay){
  u64*my=r.lines+blockIdx.x*16;
  for(int i=0;i<n;i++){u64 a=gt();u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);u64 b=gt();
    if(firstdelay){long long c=clock64();while(clock64()-c<firstdelay);}
    unsigned p=0;while(ldrelsys(my)<=t)p++;u64 c=gt();
    tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=p+1;}
}
// flags without a ring: own slot line per block, CPU scans
__global__ void kF(R r,int n,T tr,int firstdelay){
  u64*my=r.lines+blockIdx.x*16;u64*fl=r.slots+blockIdx.x*8;
  for(int i=0;i<n;i++){u64 a=gt();stsys(fl,i+1);u64 b=gt();
    if(firstdelay){long long c=clock64();while(clock64()-c<firstdelay);}
    while(ldrelsys(my)<=(u64)i);u64 c=gt();u64 t=(u64)i*gridDim.x+blockIdx.x;
    tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=0;}
}

__device__ __forceinline__ u64 pushpair(R&r,u64 a,u64 b,u64 c,u64 d){
  // whole warp calls; one command by lanes 0 and 1 in one store
  int lane=threadIdx.x&31;u64 t=0,tl=0;
  if(lane==0){t=atomicAdd(r.head,1ull);tl=ldacqgpu(r.tailc);if(t+1>tl+r.mask+1)waitfor(r.tailc,r.lock,r.tail,t+1-r.mask-1);}
  t=__shfl_sync(~0u,t,0);
  u64 par=((t>>r.shift)&1)^1;par<<=63;u64*s=r.slots+(t&r.mask)*r.words+lane*2;
  u64 x=lane?c:a,y=lane?d:b;
  if(lane<2)asm volatile("st.relaxed.sys.global.v2.u64 [%0],{%1,%2};"::"l"(s),"l"(x|par),"l"(y|par):"memory");
  return t;
}

__global__ void kEP(R r,int n,int k,T tr,int firstdelay,int backoff){
  for(int i=0;i<n;i++){
    u64 a=gt();
    u64 t=pushpair(r,i,threadIdx.x,blockIdx.x,7);
    u64 b=gt();
    unsigned polls=0;
    if(threadIdx.x==0){
    bool elected=false;u64*lk=r.lock2+(blockIdx.x%k)*32;
    elected=atomicCAS(lk,0ull,1ull)==0;
    if(firstdelay&&elected){long long c=clock64();while(clock64()-c<firstdelay);}
    for(;;){
      if(elected){
        u64 v=ldrelsys(r.done); polls++; if(v>ldgpu(r.donec))stgpu(r.donec,v); if(v>t)break;
      } else {
        if(ldgpu(r.donec)>t)break;
        if(backoff)__nanosleep(backoff);
        if(ldgpu(lk)==0) elected=atomicCAS(lk,0ull,1ull)==0;
      }
    }
    if(elected)stgpu(lk,0);
    }
    __syncwarp();
    u64 c=gt();
    if(threadIdx.x==0){tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=polls;}
  }
}
__global__ void kRP(R r,int n,T tr,u64 total,int stagger){
  if(blockIdx.x==gridDim.x-1){
    if(threadIdx.x%32)return; int w=threadIdx.x/32; 
    long long c=clock64(); while(clock64()-c<(long long)stagger*w);
    u64 seen=0; for(;;){u64 v=ldrelsys(r.done); if(v>seen){seen=v;atomicMax(r.donec,v);} if(v>=total)break;}
    return;
  }
  if(threadIdx.x>=32)return;
  for(int i=0;i<n;i++){
    u64 a=gt();
    u64 t=pushpair(r,i,threadIdx.x,blockIdx.x,7);
    u64 b=gt();
    if(threadIdx.x==0)while(ldgpu(r.donec)<=t);
    __syncwarp();
    u64 c=gt();
    if(threadIdx.x==0){tr.start[t]=a;tr.ticket[t]=b;tr.done[t]=c;tr.poll[t]=0;}
  }
}
static u64*h,*dv,*trd; static int shift=14; static R r; static T tr;
static double now(){return std::chrono::duration<double,std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();}
static std::vector<u64> popt; static u64 g_empty,g_busy,g_batches; 
static inline u64 wall(){timespec t;clock_gettime(CLOCK_REALTIME,&t);return t.tv_sec*1000000000ull+t.tv_nsec;}
template<int W,int G> void consume(u64 N,int pub,int lines,bool trace,int pause){
  u64 c=0,empty=0,batches=0,lastt=0; volatile u64*vt=r.tail,*vd=r.done; u64 x=0;
  double t0=0; 
  while(c<N){
    u64 at=c&r.mask; u64 par=(((c>>shift)&1)^1)<<63; __m256i p=_mm256_set1_epi64x(par);
    int room=(int)std::min<u64>(G,r.mask+1-at); u64*s=h+at*W; unsigned ready=0; int n;
    asm volatile("":::"memory");
    if(room==G){
      #pragma GCC unroll 16
      for(int i=0;i<G;i++){__m256i v=_mm256_load_si256((__m256i*)(s+i*W)); ready|=(unsigned)(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_xor_si256(v,p)))!=0)<<i;}
      n=ready?__builtin_ctz(ready):G;
    } else for(n=0;n<room;n++){__m256i v=_mm256_load_si256((__m256i*)(s+n*W)); if(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_xor_si256(v,p))))break;}
    if(!n){empty++; for(int i=0;i<pause;i++)_mm_pause(); continue;}
    batches++;
    if(lines)for(int i=0;i<n;i++)((volatile u64*)r.lines)[(s[i*W+2]&0xffff)*16]=c+i+1;
    if(trace){u64 w=wall();for(int i=0;i<n;i++)popt[c+i]=w;}
    c+=n;
    if(c-lastt>=64){*vt=c;lastt=c;}
    if(pub)*vd=c;
  }
  *vt=c;*vd=c;g_empty=empty;g_batches=batches;
}
static void consumeF(int g,int n){
  std::vector<u64> last(g,0);u64 left=(u64)g*n; volatile u64*l=r.lines;
  while(left)for(int b=0;b<g;b++){u64 v=*(volatile u64*)(h+b*8);if(v!=last[b]){last[b]=v;l[b*16]=v;left--;}}
}
static double pct(std::vector<double>&v,double q){std::sort(v.begin(),v.end());return v[(size_t)(q*(v.size()-1))];}
static int per=3000;
static void report(const char*name,int g,u64 N,double us,bool host){
  std::vector<u64> st(N),tk(N),dn(N),pl(N);
  cudaMemcpy(st.data(),tr.start,N*8,cudaMemcpyDeviceToHost);cudaMemcpy(tk.data(),tr.ticket,N*8,cudaMemcpyDeviceToHost);cudaMemcpy(dn.data(),tr.done,N*8,cudaMemcpyDeviceToHost);cudaMemcpy(pl.data(),tr.poll,N*8,cudaMemcpyDeviceToHost);
  std::vector<double> tot,push,transit,back;double polls=0;
  for(u64 i=N/4;i<N;i++){tot.push_back((double)(dn[i]-st[i]));push.push_back((double)(tk[i]-st[i]));polls+=pl[i];
    if(host){transit.push_back((double)popt[i]-(double)tk[i]);back.push_back((double)dn[i]-(double)popt[i]);}}
  printf("%-22s g%-3d %.2f Mops %.2f us | total p50 %.0f p90 %.0f p99 %.0f | push p50 %.0f p90 %.0f | polls/push %.2f empty/pop %.2f batch %.2f",name,g,N/us,us/per,pct(tot,.5),pct(tot,.9),pct(tot,.99),pct(push,.5),pct(push,.9),polls/tot.size(),(double)g_empty/N,(double)N/(g_batches?g_batches:1));
  if(host)printf(" | transit p1 %.0f p50 %.0f p90 %.0f | back p1 %.0f p50 %.0f p90 %.0f",pct(transit,.01),pct(transit,.5),pct(transit,.9),pct(back,.01),pct(back,.5),pct(back,.9));
  puts("");
}
int main(){
  CK(cudaSetDevice(0));CK(cudaFree(0));u64 S=1ull<<shift;size_t bytes=S*64+262144;
  CK(cudaHostAlloc(&h,bytes,cudaHostAllocMapped));CK(cudaMalloc(&dv,65536));CK(cudaMalloc(&trd,4*132*3000*8));
  popt.resize(132*3000);
  u64*extra=h+S*8;r.slots=h;r.tail=extra;r.done=extra+64;r.lines=extra+512;
  r.head=dv;r.tailc=dv+32;r.lock=dv+64;r.donec=dv+128;r.lock2=dv+1024;r.mask=S-1;r.shift=shift;r.words=4;
  tr={trd,trd+132*3000,trd+2*132*3000,trd+3*132*3000};
  auto go=[&](const char*name,int g,auto launch,int W,int G,int lines,bool trace,int pause){
    u64 N=(u64)g*per;r.words=W;memset(h,0,bytes);CK(cudaMemset(dv,0,65536));CK(cudaDeviceSynchronize());
    double t0=now();launch();CK(cudaGetLastError());
    if(G<0)consumeF(g,per);
    else if(W==4&&G==1)consume<4,1>(N,!lines,lines,trace,pause);else if(W==4&&G==8)consume<4,8>(N,!lines,lines,trace,pause);else if(W==4)consume<4,16>(N,!lines,lines,trace,pause);
    else if(G==1)consume<8,1>(N,!lines,lines,trace,pause);else consume<8,8>(N,!lines,lines,trace,pause);
    double t1=now();CK(cudaDeviceSynchronize());report(name,g,N,t1-t0,trace);
  };

  auto dump=[&](const char*f,int g){u64 N=(u64)g*per;std::vector<u64> st(N),tk(N),dn(N);
  cudaMemcpy(st.data(),tr.start,N*8,cudaMemcpyDeviceToHost);cudaMemcpy(tk.data(),tr.ticket,N*8,cudaMemcpyDeviceToHost);cudaMemcpy(dn.data(),tr.done,N*8,cudaMemcpyDeviceToHost);
  FILE*o=fopen(f,"w");for(u64 i=50000;i<60000;i++)fprintf(o,"%llu %llu %llu %llu\n",st[i]-st[50000],tk[i]-st[50000],dn[i]-st[50000],popt[i]-popt[50000]);fclose(o);};

  for(int rep=0;rep<2;rep++)for(int g:{1,2,8,32,64,132}){
    go("pair elect1 G8",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,0);},4,8,0,false,0);
    go("pair elect1 G8 p2",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,0);},4,8,0,false,2);
    go("pair elect1 G8 p2 fd200",g,[&]{kEP<<<g,32>>>(r,per,1,tr,200,0);},4,8,0,false,2);
    go("pair elect1 G8 p2 bo32",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,32);},4,8,0,false,2);
    go("pair elect1 G8 p2 bo200",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,200);},4,8,0,false,2);
    go("pair elect2 G8 p2",g,[&]{kEP<<<g,32>>>(r,per,2,tr,0,0);},4,8,0,false,2);
    go("pair elect1 W8 G1",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,0);},8,1,0,false,0);
    go("pair elect1 W8 G8 p2",g,[&]{kEP<<<g,32>>>(r,per,1,tr,0,0);},8,8,0,false,2);
    go("pair relay3 G8 p2",g,[&]{kRP<<<g+1,96>>>(r,per,tr,(u64)g*per,700);},4,8,0,false,2);
    go("pair relay1 G8 p2",g,[&]{kRP<<<g+1,32>>>(r,per,tr,(u64)g*per,0);},4,8,0,false,2);
    go("pair relay2 G8 p2",g,[&]{kRP<<<g+1,64>>>(r,per,tr,(u64)g*per,1000);},4,8,0,false,2);
  }
}
