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
// variants: 0 relaxed, 1 acquire, 2 relaxed + fence at end, 3 pipelined 4 polls
__global__ void pp(u64*flag,u64*ans,int n,int variant,int delay,int space,u64*out){
  u64 t0=gt();
  for(int i=1;i<=n;i++){
    stsys(flag,i);
    long long c=clock64();
    if(delay) while(clock64()-c<delay);
    if(variant==0){ while(ldrelsys(ans)<i); }
    else if(variant==1){ while(ldacqsys(ans)<i); }
    else if(variant==2){ while(ldrelsys(ans)<i); asm volatile("fence.acq_rel.sys;":::"memory"); }
    else if(variant==4){ while(ldrelsys(ans)<i); asm volatile("fence.acq_rel.gpu;":::"memory"); }
    else {
      long long next=clock64();
      u64 v0=0,v1=0,v2=0,v3=0;
      for(;;){
        v0=ldrelsys(ans); next+=space; 
        if(v1>=i) break;
        while(clock64()<next);
        v1=ldrelsys(ans); next+=space;
        if(v2>=i) break;
        while(clock64()<next);
        v2=ldrelsys(ans); next+=space;
        if(v3>=i) break;
        while(clock64()<next);
        v3=ldrelsys(ans); next+=space;
        if(v0>=i) break;
        while(clock64()<next);
      }
    }
  }
  *out=gt()-t0;
}
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
template<bool ACQ>__global__ void knbi(R r,int n){for(int i=0;i<n;i++)push<ACQ>(r,i,threadIdx.x,blockIdx.x,7);}
// V1: elected poller; pollers: k groups
__global__ void kA(R r,int n,int k){
  u64*dc=r.donec+(blockIdx.x%k)*32,*lk=r.lock2+(blockIdx.x%k)*32;
  for(int i=0;i<n;i++){
    u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    for(;;){
      if(ldgpu(dc)>t)break;
      if(ldgpu(lk)==0&&atomicCAS(lk,0ull,1ull)==0){
        u64 v; do{v=ldrelsys(r.done); if(v>ldgpu(dc))stgpu(dc,v);}while(v<=t);
        asm volatile("st.release.gpu.global.u64 [%0],%1;"::"l"(lk),"l"(0ull):"memory");
        break;
      }
    }
  }
}
// elected poller, first CAS, then poll with spacing pipelined x4
__global__ void kP(R r,int n,int k,int space){
  u64*dc=r.donec+(blockIdx.x%k)*32,*lk=r.lock2+(blockIdx.x%k)*32;
  for(int i=0;i<n;i++){
    u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    for(;;){
      if(ldgpu(dc)>t)break;
      if(ldgpu(lk)==0&&atomicCAS(lk,0ull,1ull)==0){
        u64 seen=0; long long next=clock64(); u64 v0=0,v1=0,v2=0,v3=0;
        #define STEP(x,y) x=ldrelsys(r.done); next+=space; if(y>seen){seen=y;stgpu(dc,y);if(y>t)break;} while(clock64()<next);
        for(;;){ STEP(v0,v1) STEP(v1,v2) STEP(v2,v3) STEP(v3,v0) }
        asm volatile("st.release.gpu.global.u64 [%0],%1;"::"l"(lk),"l"(0ull):"memory");
        break;
      }
    }
  }
}
// dedicated relay: the last block polls for all
__global__ void kD(R r,int n,int space,u64 total){
  if(blockIdx.x==gridDim.x-1){
    u64 seen=0; long long next=clock64(); u64 v0=0,v1=0,v2=0,v3=0;
    #define STEPD(x,y) x=ldrelsys(r.done); next+=space; if(y>seen){seen=y;stgpu(r.donec,y);if(y>=total)break;} while(clock64()<next);
    for(;;){ STEPD(v0,v1) STEPD(v1,v2) STEPD(v2,v3) STEPD(v3,v0) }
    return;
  }
  for(int i=0;i<n;i++){
    u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    while(ldgpu(r.donec)<=t);
  }
}
__global__ void kB(R r,int n){
  u64*my=r.lines+blockIdx.x*16;
  for(int i=0;i<n;i++){u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);while(ldrelsys(my)<=t);}
}
// pipelined line per block
__global__ void kBP(R r,int n,int space){
  u64*my=r.lines+blockIdx.x*16;
  for(int i=0;i<n;i++){u64 t=push<true>(r,i,threadIdx.x,blockIdx.x,7);
    long long next=clock64(); u64 v0=0,v1=0,v2=0,v3=0;
    #define STEPB(x,y) x=ldrelsys(my); next+=space; if(y>t)break; while(clock64()<next);
    for(;;){ STEPB(v0,v1) STEPB(v1,v2) STEPB(v2,v3) STEPB(v3,v0) }
  }
}
static u64*h,*dv; static int shift=14; static R r;
static double now(){return std::chrono::duration<double,std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();}
static u64 g_sum,g_scans,g_empty;
// consumer A: one by one with prefetch; B: groups of G slots, branch free
template<int W> void consumeA(u64 N,int pub,int lines,int tailstep){
  u64 c=0,sum=0,empty=0,lastt=0; volatile u64*vt=r.tail,*vd=r.done;
  while(c<N){u64 lim=std::min(N,c+64),c0=c;
    while(c<lim){u64*s=h+(c&r.mask)*W;__m256i x=_mm256_load_si256((__m256i*)s);
      u64 par=(((c>>shift)&1)^1)<<63; __m256i p=_mm256_set1_epi64x(par);
      if(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_xor_si256(x,p)))){if(c==c0)empty++;break;}
      sum+=_mm256_extract_epi64(x,0); if(lines)((volatile u64*)r.lines)[(_mm256_extract_epi64(x,2)&0xffff)*16]=c+1;
      _mm_prefetch((char*)(s+64),_MM_HINT_T0);c++;}
    if(c!=c0){ if(c-lastt>=(u64)tailstep){*vt=c;lastt=c;} if(pub)*vd=c; }
  }
  *vt=c;*vd=c;g_sum=sum;g_empty=empty;
}
template<int W,int G> void consumeB(u64 N,int pub,int lines,int tailstep,int pre){
  u64 c=0,empty=0,scans=0,lastt=0; volatile u64*vt=r.tail,*vd=r.done; __m256i sum=_mm256_setzero_si256();
  while(c<N){
    u64 at=c&r.mask; u64 par=(((c>>shift)&1)^1)<<63; __m256i p=_mm256_set1_epi64x(par);
    int room=(int)std::min<u64>(G,r.mask+1-at);
    u64*s=h+at*W; unsigned ready=0; int n;
    scans++;
    if(room==G){
      __m256i v[G]; asm volatile("":::"memory");
      #pragma GCC unroll 16
      for(int i=0;i<G;i++){v[i]=_mm256_load_si256((__m256i*)(s+i*W)); ready|=(unsigned)(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_xor_si256(v[i],p)))!=0)<<i;}
      n=ready?__builtin_ctz(ready):G;
      if(n==G){
        #pragma GCC unroll 16
        for(int i=0;i<G;i++)sum=_mm256_add_epi64(sum,v[i]);
        if(pre)for(int i=0;i<G*W;i+=8)_mm_prefetch((char*)(s+pre*8+i),_MM_HINT_T0);
      } else for(int i=0;i<n;i++)sum=_mm256_add_epi64(sum,_mm256_load_si256((__m256i*)(s+i*W)));
    } else {
      asm volatile("":::"memory");
      for(n=0;n<room;n++){__m256i x=_mm256_load_si256((__m256i*)(s+n*W)); if(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_xor_si256(x,p))))break; sum=_mm256_add_epi64(sum,x);}
    }
    if(!n){empty++;continue;}
    if(lines)for(int i=0;i<n;i++)((volatile u64*)r.lines)[(s[i*W+2]&0xffff)*16]=c+i+1;
    c+=n;
    if(c-lastt>=(u64)tailstep){*vt=c;lastt=c;}
    if(pub)*vd=c;
  }
  *vt=c;*vd=c;g_sum=_mm256_extract_epi64(sum,0);g_empty=empty;g_scans=scans;
}
int main(){
  CK(cudaSetDevice(0));CK(cudaFree(0));
  u64 S=1ull<<shift;size_t bytes=S*64+131072;
  CK(cudaHostAlloc(&h,bytes,cudaHostAllocMapped));CK(cudaMalloc(&dv,65536));
  u64*extra=h+S*8;
  r.slots=h;r.tail=extra;r.done=extra+64;r.lines=extra+512;
  r.head=dv;r.tailc=dv+32;r.lock=dv+64;r.donec=dv+128;r.lock2=dv+1024;r.mask=S-1;r.shift=shift;r.words=4;
  u64*out=dv+4096;
  auto floorp=[&](int var,int delay,int space){
    memset(extra,0,4096);int n=20000;volatile u64*f=extra,*a=extra+64;
    pp<<<1,1>>>((u64*)f,(u64*)a,n,var,delay,space,out);
    u64 last=0;while(last<(u64)n){u64 x=*f;if(x!=last){*a=x;last=x;}}
    CK(cudaDeviceSynchronize());u64 ns;CK(cudaMemcpy(&ns,out,8,cudaMemcpyDeviceToHost));
    return ns/1000.0/n;
  };
  for(int rep=0;rep<2;rep++){
    printf("floor relaxed %.3f acquire %.3f relaxed+fence.sys %.3f relaxed+fence.gpu %.3f\n",floorp(0,0,0),floorp(1,0,0),floorp(2,0,0),floorp(4,0,0));
    printf("delay(cycles):");for(int d:{0,200,400,600,800,1000,1200,1400,1600,2000})printf(" %d:%.3f",d,floorp(0,d,0));puts("");
    printf("pipelined space:");for(int d:{0,50,100,200,300,400,500,600,800})printf(" %d:%.3f",d,floorp(3,0,d));puts("");
  }
  auto prep=[&](){memset(h,0,bytes);CK(cudaMemset(dv,0,65536));CK(cudaDeviceSynchronize());};
  auto ack=[&](const char*name,int W,int g,int cons,auto launch,int lines){
    int per=4000; u64 N=(u64)g*per;r.words=W;prep();double t0=now();launch(per);CK(cudaGetLastError());
    if(W==4){ if(cons==0)consumeA<4>(N,!lines,lines,64);else if(cons==4)consumeB<4,4>(N,!lines,lines,64,0);else if(cons==16)consumeB<4,16>(N,!lines,lines,64,0);else consumeB<4,8>(N,!lines,lines,64,0);}
    else { if(cons==0)consumeA<8>(N,!lines,lines,64);else consumeB<8,8>(N,!lines,lines,64,0);}
    double t1=now();CK(cudaDeviceSynchronize());
    printf("  %s W%d cons%d g%d: %.2f Mops %.3f us\n",name,W,cons,g,N/(t1-t0),(t1-t0)/per);
  };
  for(int g:{1,2,8,32,64,132}){
    for(int W:{4,8})for(int cons:{0,4,8,16}){ if(W==8&&(cons==4||cons==16))continue;
      ack("elected1",W,g,cons,[&](int n){kA<<<g,1>>>(r,n,1);},0);
      if(cons==0||cons==8){
      ack("elected4",W,g,cons,[&](int n){kA<<<g,1>>>(r,n,4);},0);
      ack("pipe1 s300",W,g,cons,[&](int n){kP<<<g,1>>>(r,n,1,300);},0);
      ack("pipe1 s500",W,g,cons,[&](int n){kP<<<g,1>>>(r,n,1,500);},0);
      ack("pipe4 s500",W,g,cons,[&](int n){kP<<<g,1>>>(r,n,4,500);},0);
      ack("relay s300",W,g,cons,[&](int n){kD<<<g+1,1>>>(r,n,300,(u64)g*n);},0);
      ack("relay s600",W,g,cons,[&](int n){kD<<<g+1,1>>>(r,n,600,(u64)g*n);},0);
      ack("lines",W,g,cons,[&](int n){kB<<<g,1>>>(r,n);},1);
      ack("lines pipe s500",W,g,cons,[&](int n){kBP<<<g,1>>>(r,n,500);},1);}
    }
  }
  auto nbi=[&](int g,int b,u64 per,int cons,bool acq,int pre){
    r.words=4;u64 N=(u64)g*b*per;prep();double t0=now();
    if(acq)knbi<true><<<g,b>>>(r,per);else knbi<false><<<g,b>>>(r,per);CK(cudaGetLastError());
    if(cons==0)consumeA<4>(N,0,0,64);else if(cons==8)consumeB<4,8>(N,0,0,64,pre);else if(cons==4)consumeB<4,4>(N,0,0,64,pre);else consumeB<4,16>(N,0,0,64,pre);
    double t1=now();CK(cudaDeviceSynchronize());return N/(t1-t0);
  };
  int gs[][3]={{1,1,200000},{1,32,200000},{4,32,100000},{32,32,40000},{132,1,40000},{132,32,10000},{132,256,2000},{132,1024,500},{264,512,500}};
  for(int rep=0;rep<2;rep++)for(auto&g:gs){
    printf("nbi %dx%d: A %.1f A-rel %.1f |",g[0],g[1],nbi(g[0],g[1],g[2],0,true,0),nbi(g[0],g[1],g[2],0,false,0));
    for(int cons:{4,8,16})for(int pre:{0,8,16,32,64})printf(" B%d/p%d %.1f",cons,pre,nbi(g[0],g[1],g[2],cons,true,pre));puts("");
  }
}
