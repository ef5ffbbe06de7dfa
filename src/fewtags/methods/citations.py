"""BibTeX of the papers behind the methods."""

from __future__ import annotations

SSGRL = """@inproceedings{chen2019ssgrl,
  title = {Learning Semantic-Specific Graph Representation for Multi-Label Image Recognition},
  author = {Chen, Tianshui and Xu, Muxin and Hui, Xiaolu and Wu, Hefeng and Lin, Liang},
  booktitle = {Proceedings of the IEEE/CVF International Conference on Computer Vision (ICCV)},
  pages = {522--531},
  year = {2019}
}"""

KGGR = """@article{chen2022kggr,
  title = {Knowledge-Guided Multi-Label Few-Shot Learning for General Image Recognition},
  author = {Chen, Tianshui and Lin, Liang and Chen, Riquan and Hui, Xiaolu and Wu, Hefeng},
  journal = {IEEE Transactions on Pattern Analysis and Machine Intelligence},
  volume = {44},
  number = {3},
  pages = {1371--1384},
  year = {2022}
}"""

LBFGS = """@article{liu1989lbfgs,
  title = {On the Limited Memory {BFGS} Method for Large Scale Optimization},
  author = {Liu, Dong C. and Nocedal, Jorge},
  journal = {Mathematical Programming},
  volume = {45},
  pages = {503--528},
  year = {1989}
}"""

FOCAL = """@inproceedings{lin2017focal,
  title = {Focal Loss for Dense Object Detection},
  author = {Lin, Tsung-Yi and Goyal, Priya and Girshick, Ross and He, Kaiming and Doll{\\'a}r, Piotr},
  booktitle = {Proceedings of the IEEE International Conference on Computer Vision (ICCV)},
  pages = {2980--2988},
  year = {2017}
}"""

ASL = """@inproceedings{ridnik2021asymmetric,
  title = {Asymmetric Loss for Multi-Label Classification},
  author = {Ridnik, Tal and Ben-Baruch, Emanuel and Zamir, Nadav and Noy, Asaf and Friedman, Itamar and
            Protter, Matan and Zelnik-Manor, Lihi},
  booktitle = {Proceedings of the IEEE/CVF International Conference on Computer Vision (ICCV)},
  pages = {82--91},
  year = {2021}
}"""

SST = """@inproceedings{chen2022structured,
  title = {Structured Semantic Transfer for Multi-Label Recognition with Partial Labels},
  author = {Chen, Tianshui and Pu, Tao and Wu, Hefeng and Xie, Yuan and Lin, Liang},
  booktitle = {Proceedings of the AAAI Conference on Artificial Intelligence},
  volume = {36},
  number = {1},
  pages = {339--346},
  year = {2022}
}"""

LARGE_LOSS = """@inproceedings{kim2022large,
  title = {Large Loss Matters in Weakly Supervised Multi-Label Classification},
  author = {Kim, Youngwook and Kim, Jae Myung and Akata, Zeynep and Lee, Jungwoo},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  pages = {14156--14165},
  year = {2022}
}"""

ROLE = """@inproceedings{cole2021multi,
  title = {Multi-Label Learning from Single Positive Labels},
  author = {Cole, Elijah and Mac Aodha, Oisin and Lorieul, Titouan and Perona, Pietro and Morris, Dan and
            Jojic, Nebojsa},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  pages = {933--942},
  year = {2021}
}"""

CALDNR = """@article{pu2024category,
  title  = {Category-Adaptive Label Discovery and Noise Rejection for Multi-label Image Recognition with Partial
            Positive Labels},
  author = {Pu, Tao and Lao, Qianru and Wu, Hefeng and Chen, Tianshui and Lin, Liang},
  note   = {arXiv:2211.07846; IEEE Transactions on Multimedia, doi 10.1109/TMM.2024.3395901},
  year   = {2024}
}"""

ELKAN_NOTO = """@inproceedings{elkan2008learning,
  title = {Learning Classifiers from Only Positive and Unlabeled Data},
  author = {Elkan, Charles and Noto, Keith},
  booktitle = {Proceedings of the 14th ACM SIGKDD International Conference on Knowledge Discovery and Data Mining},
  pages = {213--220},
  year = {2008}
}"""

EM_APL = """@inproceedings{zhou2022acknowledging,
  title = {Acknowledging the Unknown for Multi-label Learning with Single Positive Labels},
  author = {Zhou, Donghao and Chen, Pengfei and Wang, Qiong and Chen, Guangyong and Heng, Pheng-Ann},
  booktitle = {European Conference on Computer Vision (ECCV)},
  year = {2022},
  note = {arXiv:2203.16219}
}"""

HILL_SPLC = """@article{zhang2021simple,
  title = {Simple and Robust Loss Design for Multi-Label Learning with Missing Labels},
  author = {Zhang, Youcai and Cheng, Yuhao and Huang, Xinyu and Wen, Fei and Feng, Rui and Li, Yaqian and Guo, Yandong},
  journal = {arXiv preprint arXiv:2112.07368},
  year = {2021}
}"""

GR_LOSS = """@inproceedings{chen2024boosting,
  title = {Boosting Single Positive Multi-label Classification with Generalized Robust Loss},
  author = {Chen, Yanxi and Li, Chunxiao and Dai, Xinyang and Li, Jinhuan and Sun, Weiyu and Wang, Yiming and
            Zhang, Renyuan and Zhang, Tinghe and Wang, Bo},
  booktitle = {Proceedings of the International Joint Conference on Artificial Intelligence (IJCAI)},
  year = {2024}
}"""

BOOSTLU = """@inproceedings{kim2023bridging,
  title = {Bridging the Gap Between Model Explanations in Partially Annotated Multi-Label Classification},
  author = {Kim, Youngwook and Kim, Jae Myung and Jeong, Jieun and Schmid, Cordelia and Akata, Zeynep and Lee, Jungwoo},
  booktitle = {Proceedings of the IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)},
  pages = {3408--3417},
  year = {2023}
}"""

NNPU = """@inproceedings{kiryo2017positive,
  title = {Positive-Unlabeled Learning with Non-Negative Risk Estimator},
  author = {Kiryo, Ryuichi and Niu, Gang and du Plessis, Marthinus C. and Sugiyama, Masashi},
  booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
  year = {2017}
}"""

PU_MLC = """@inproceedings{yuan2024positive,
  title = {Positive Label Is All You Need for Multi-Label Classification},
  author = {Yuan, Zhixiang and Zhang, Kaixin and Huang, Tao},
  booktitle = {IEEE International Conference on Multimedia and Expo (ICME)},
  year = {2024},
  note = {arXiv:2306.16016; the loss is VPU's: Chen, Liu, Wang, Zhao and Wu, NeurIPS 2020}
}"""
